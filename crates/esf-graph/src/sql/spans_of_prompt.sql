SELECT d.policy_version_start, d.policy_version_end FROM siblings s
JOIN deliveries d ON d.run = s.run AND d.sequence = s.sequence WHERE s.prompt = $1 AND d.usable = 1 ORDER BY s.ordinal
