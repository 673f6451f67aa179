"""Processes of children: started, watched, ended and found again, also when their kernel died."""
