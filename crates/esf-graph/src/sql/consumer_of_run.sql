SELECT number, offered, name, unit, usable_only, cursor, trainer_step FROM consumers WHERE run = $1 AND name = $2
