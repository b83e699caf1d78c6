UPDATE prompts SET open_siblings = open_siblings + $1, status = 'open', sequence = NULL WHERE number = $2
