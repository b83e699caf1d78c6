SELECT sequence FROM consumptions
WHERE consumer = $1 AND (state = 'available' OR state = 'leased') ORDER BY sequence LIMIT 1
