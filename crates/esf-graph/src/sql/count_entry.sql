UPDATE positions SET entries = entries + 1 WHERE number = $1
