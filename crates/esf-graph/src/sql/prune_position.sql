UPDATE positions SET pruned = 1 WHERE number = $1
