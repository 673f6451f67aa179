# Add up what every `count` step left, which lies under $ONCEWARD_INPUTS/count/<target>/.
set -eu
top=$(sed -n 's/.*"top": *\([0-9]*\).*/\1/p' "$ONCEWARD_CONFIG")
find "$ONCEWARD_INPUTS/count" -name counts.txt -exec cat {} + \
  | awk 'NF == 2 && length($2) > 3 { n[$2] += $1 } END { for (w in n) print n[w], w }' \
  | LC_ALL=C sort -k1,1nr -k2 | head -n "${top:-5}" > "$ONCEWARD_OUT/top.txt"
cat "$ONCEWARD_OUT/top.txt"
