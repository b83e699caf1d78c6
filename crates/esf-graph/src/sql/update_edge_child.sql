UPDATE edges SET child_visits = $1, child_mean = $2, child_proven = $3 WHERE number = $4
