UPDATE positions SET asking = asking + $1 WHERE number = $2
