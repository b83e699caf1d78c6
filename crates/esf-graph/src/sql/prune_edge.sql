UPDATE edges SET status = 'pruned', closed_because = $1 WHERE number = $2
