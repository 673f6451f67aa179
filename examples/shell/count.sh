# Count the words of one text. What is left in $ONCEWARD_OUT becomes the step's result.
set -eu
words=$(wc -w < "$1")
onceward report --tokens "$words" --note "counting $words words"    # asks first: exits 3 when the budget has no room
tr -cs '[:alpha:]' '\n' < "$1" | tr '[:upper:]' '[:lower:]' | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2 \
  > "$ONCEWARD_OUT/counts.txt"
echo "$1: $words words"
