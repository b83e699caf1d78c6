UPDATE consumptions SET state = $1, expires_at = $2, boot_id = $3
WHERE consumer = $4 AND sequence = $5 AND batch = $6 AND state = 'leased'
