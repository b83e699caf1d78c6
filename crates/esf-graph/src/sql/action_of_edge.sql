SELECT action, name FROM actions WHERE edge = $1
