SELECT s.action, s.observation, s.arrays FROM steps s JOIN trials t ON t.number = s.trial
JOIN siblings b ON b.number = t.sibling JOIN prompts p ON p.number = b.prompt JOIN nodes n ON n.node_id = p.node_id
WHERE s.artifacts > 0 AND n.status <> 'pruned'
