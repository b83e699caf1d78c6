SELECT max(trainer_step) FROM consumers WHERE run = $1
