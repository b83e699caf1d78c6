# The agent that fixes half: upper and lower case become one word, punctuation stays glued on.
sed 's/count\[\$i\]++/count[tolower($i)]++/' count.awk > count.new && mv count.new count.awk
sh ./test.sh
exit 0
