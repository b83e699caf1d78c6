SELECT g.group_id, g.name, g.canonical_node_id, g.generation, p.toml, g.policy_digest, g.source, e.json,
       g.created_at, g.created_by, g.trace_id
FROM groups g
JOIN policies p ON p.policy_digest = g.policy_digest
JOIN environments e ON e.environment_digest = g.default_environment
WHERE g.name = $1
