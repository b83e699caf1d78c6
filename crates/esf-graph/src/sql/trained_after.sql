SELECT sequence FROM consumptions WHERE consumer = $1 AND state = 'trained' AND step > $2 ORDER BY sequence
