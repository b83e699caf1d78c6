SELECT d.sequence, d.members, d.dropped_by, d.trained_by,
       d.sequence = coalesce(CASE d.kind WHEN 'sibling' THEN s.sequence ELSE p.sequence END, 0)
FROM deliveries d JOIN prompts p ON p.number = d.prompt LEFT JOIN siblings s ON s.number = d.sibling
WHERE d.run = $1 ORDER BY d.sequence
