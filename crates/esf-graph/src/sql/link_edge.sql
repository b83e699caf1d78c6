UPDATE edges SET child = $1, reward = $2, discount = $3 WHERE number = $4 AND child IS NULL
