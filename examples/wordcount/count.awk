# Prints "COUNT WORD" for each word read.
# A word is a run of letters, digits and apostrophes; upper and lower case are the same word.
{
    for (i = 1; i <= NF; i++)
        count[$i]++
}
END {
    for (word in count)
        print count[word], word
}
