# Sourced by test.sh: runs every case and counts them in $passed and $failed.
passed=0
failed=0

one_line() {
    printf '%s' "$1" | tr '\n' '|'
}

# check NAME INPUT EXPECTED [ARGUMENT...]: compares what wordcount prints for INPUT.
check() {
    name=$1 input=$2 expected=$3
    shift 3
    found=$(printf '%s' "$input" | sh ./wordcount "$@" 2>/dev/null)
    if [ "$found" = "$expected" ]; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "not ok  $name: expected '$(one_line "$expected")', found '$(one_line "$found")'"
    fi
}

nl='
'
check 'nothing in, nothing out' '' ''
check 'one word' 'tree' '1 tree'
check 'words of several lines' "a b${nl}b" "2 b${nl}1 a"
check 'ties in alphabetical order' 'c b a' "1 a${nl}1 b${nl}1 c"
check 'only the most frequent' 'x y y z z z' "3 z${nl}2 y" -n 2
check 'digits are words' '7 up 7' "2 7${nl}1 up"
check 'case does not matter' 'Root root ROOT' '3 root'
check 'case does not matter across lines' "Fork${nl}fork seal" "2 fork${nl}1 seal"
check 'punctuation is no part of a word' 'seal, (seal) seal.' '3 seal'
check 'an apostrophe is' "don't! Don't" "2 don't"
