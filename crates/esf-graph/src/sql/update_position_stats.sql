UPDATE positions SET value_count = $1, value = $2, visits = $3, mean = $4, proven = $5 WHERE number = $6
