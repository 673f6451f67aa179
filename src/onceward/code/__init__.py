"""The code that people bring: loading their files, and the version of a function and of all that
it reaches."""
