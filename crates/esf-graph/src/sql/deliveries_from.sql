SELECT d.dropped_by, d.trained_by, d.outcome_digest, CASE d.kind WHEN 'sibling' THEN s.sequence ELSE p.sequence END, d.reward, d.outcome,
       d.sequence, d.kind, r.run_id, p.prompt_id, p.ordinal, s.sibling_id, s.ordinal, d.revision, t.ordinal, d.status, d.cancelled,
       d.usable, d.policy_version_start, d.policy_version_end, d.members, d.at
FROM deliveries d JOIN runs r ON r.number = d.run JOIN prompts p ON p.number = d.prompt
LEFT JOIN siblings s ON s.number = d.sibling LEFT JOIN trials t ON t.number = d.trial WHERE d.run = $1 AND d.sequence >= $2 ORDER BY d.sequence LIMIT $3
