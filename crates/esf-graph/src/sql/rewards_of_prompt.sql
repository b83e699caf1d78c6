SELECT d.usable, d.reward FROM siblings s JOIN deliveries d ON d.run = s.run AND d.sequence = s.sequence
WHERE s.prompt = $1 ORDER BY s.ordinal
