SELECT p.toml FROM groups g JOIN policies p ON p.policy_digest = g.policy_digest WHERE g.group_id = $1
