SELECT prompt_id FROM prompts WHERE run = $1 AND status = 'open' ORDER BY ordinal LIMIT 1
