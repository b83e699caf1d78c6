SELECT c.name, x.state = 'trained' FROM consumers c JOIN consumptions x ON x.consumer = c.number
WHERE c.run = $1 AND x.sequence = $2 AND (x.state = 'trained' OR x.reason = 'filtered') ORDER BY c.number LIMIT 1
