SELECT x.sequence, x.state = 'trained' FROM consumers c JOIN consumptions x ON x.consumer = c.number
WHERE c.run = $1 AND (x.state = 'trained' OR x.reason = 'stale' OR x.reason = 'filtered')
