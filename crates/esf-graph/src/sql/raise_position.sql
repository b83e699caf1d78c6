UPDATE positions SET depth = $1, level = $2 WHERE number = $3
