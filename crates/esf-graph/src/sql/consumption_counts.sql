SELECT state, reason, count(*) FROM consumptions WHERE consumer = $1 GROUP BY state, reason
