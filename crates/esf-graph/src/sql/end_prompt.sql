UPDATE prompts SET status = $1, sequence = $2 WHERE number = $3
