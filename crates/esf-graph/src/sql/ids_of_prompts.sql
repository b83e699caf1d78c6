SELECT prompt_id FROM prompts WHERE prompt_id >= $1 AND prompt_id <= $2 ORDER BY prompt_id LIMIT 21
