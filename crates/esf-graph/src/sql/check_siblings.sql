SELECT s.sibling_id FROM siblings s LEFT JOIN deliveries d ON d.run = s.run AND d.sequence = s.sequence
LEFT JOIN trials t ON t.number = s.trial
WHERE s.run = $1 AND (
    (SELECT count(*) FROM deliveries e WHERE e.sibling = s.number)
        <> s.revision + CASE WHEN s.status = 'waiting' OR s.status = 'running' THEN 0 ELSE 1 END
    OR (SELECT count(*) FROM trials u WHERE u.sibling = s.number) <> s.trials
    OR (SELECT count(*) FROM trials u WHERE u.sibling = s.number AND u.status = 'running')
        <> CASE s.status WHEN 'running' THEN 1 ELSE 0 END
    OR s.sequence IS NOT NULL AND (d.sibling IS NULL OR d.sibling <> s.number OR d.revision <> s.revision OR d.status <> s.status)
    OR s.trial IS NOT NULL AND (t.sibling <> s.number OR t.revision <> s.revision)
    OR s.status = 'running' AND t.status <> 'running')
ORDER BY s.number LIMIT 100
