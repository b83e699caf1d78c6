SELECT p.prompt_id FROM prompts p LEFT JOIN deliveries d ON d.run = p.run AND d.sequence = p.sequence
WHERE p.run = $1 AND (
    (SELECT count(*) FROM siblings s WHERE s.prompt = p.number) <> p.size
    OR (SELECT count(*) FROM siblings s WHERE s.prompt = p.number AND s.sequence IS NULL) <> p.open_siblings
    OR (p.status = 'open') <> (p.sequence IS NULL)
    OR p.sequence IS NOT NULL AND (d.kind IS NULL OR d.kind <> 'group' OR d.prompt <> p.number))
ORDER BY p.number LIMIT 100
