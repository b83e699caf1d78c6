# The agent that is right: it reads each line as the comment in count.awk says.
cat > count.awk <<'AWK'
# Prints "COUNT WORD" for each word read.
# A word is a run of letters, digits and apostrophes; upper and lower case are the same word.
{
    line = tolower($0)
    gsub(/[^a-z0-9']+/, " ", line)
    n = split(line, words, " ")
    for (i = 1; i <= n; i++)
        count[words[i]]++
}
END {
    for (word in count)
        print count[word], word
}
AWK
sh ./test.sh
exit 0
