SELECT s.sibling_id, t.ordinal FROM trials t JOIN siblings s ON s.number = t.sibling
WHERE t.run = $1 AND t.status = 'running' AND t.expires_at IS NOT NULL AND (t.boot_id <> $2 OR t.expires_at <= $3)
ORDER BY s.number LIMIT $4
