SELECT sequence FROM consumptions
WHERE consumer = $1 AND sequence > $2 AND (state = 'available' OR state = 'leased')
  AND (state = 'available' OR boot_id <> $3 OR expires_at <= $4) ORDER BY sequence LIMIT $5
