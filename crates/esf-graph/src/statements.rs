//! The SQL of the graph: one file for each statement, in the subset that PostgreSQL speaks as well
//! (`$1`, `ON CONFLICT`, `RETURNING`). Invariant: placeholders appear first in ascending order, since
//! SQLite numbers them as they appear.

macro_rules! statements {
    ($($name:ident = $file:literal;)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("sql/", $file, ".sql"));)*

        /// Every statement with its file's name, for the tests.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    ACCEPT_ROLLOUT = "accept_rollout";
    ACTION_OF_EDGE = "action_of_edge";
    ADVANCE_TRIAL = "advance_trial";
    AGAIN = "again";
    ALL_ATTEMPTS = "all_attempts";
    ALL_ENTRIES = "all_entries";
    ALL_ENVIRONMENTS = "all_environments";
    ALL_GROUPS = "all_groups";
    ALL_POLICIES = "all_policies";
    ALL_ROOTS = "all_roots";
    ALL_RUNS = "all_runs";
    ALL_SEARCHES = "all_searches";
    ALL_STATES = "all_states";
    ARTIFACTS_OF_STEPS = "artifacts_of_steps";
    ASK_POSITION = "ask_position";
    ATTEMPTS_OF_GROUP = "attempts_of_group";
    ATTEMPTS_OF_NODE = "attempts_of_node";
    ATTEMPTS_WITH_DELTA = "attempts_with_delta";
    ATTEMPT_BY_ID = "attempt_by_id";
    BATCH_OF_RUN = "batch_of_run";
    CANDIDATE = "candidate";
    CHECK_BASES = "check_bases";
    CHECK_CANONICAL = "check_canonical";
    CHECK_CONSUMERS = "check_consumers";
    CHECK_ENDED = "check_ended";
    CHECK_ENTRIES = "check_entries";
    CHECK_EVENTS = "check_events";
    CHECK_EXECS = "check_execs";
    CHECK_LEASES = "check_leases";
    CHECK_LIVE = "check_live";
    CHECK_PARENTS = "check_parents";
    CHECK_PRODUCERS = "check_producers";
    CHECK_PROMPTS = "check_prompts";
    CHECK_PRUNED = "check_pruned";
    CHECK_ROLLOUTS = "check_rollouts";
    CHECK_ROOTS = "check_roots";
    CHECK_SIBLINGS = "check_siblings";
    CHECK_TAGS = "check_tags";
    CHECK_TASKS = "check_tasks";
    CHECK_TRIALS = "check_trials";
    CHECK_VALUES = "check_values";
    CHILDREN_OF_NODE = "children_of_node";
    CHILDREN_OF_POSITION = "children_of_position";
    CHILD_IDS = "child_ids";
    CLOSE_ONE = "close_one";
    CONFIGURE_SEARCH = "configure_search";
    CONSUMERS_OF_RUN = "consumers_of_run";
    CONSUMER_OF_RUN = "consumer_of_run";
    CONSUMPTION_COUNTS = "consumption_counts";
    CONSUMPTION_OF = "consumption_of";
    COUNT_DELIVERY = "count_delivery";
    COUNT_ENTRY = "count_entry";
    COUNT_TAGS = "count_tags";
    DELETE_TAG = "delete_tag";
    DELIVERIES_FROM = "deliveries_from";
    DELIVERY_OF_RUN = "delivery_of_run";
    DIGESTS_OF_EDGES = "digests_of_edges";
    EDGES_FROM = "edges_from";
    END_OF_TRIAL = "end_of_trial";
    END_PROMPT = "end_prompt";
    END_QUEUE_ENTRY = "end_queue_entry";
    END_SIBLING = "end_sibling";
    END_TRIAL = "end_trial";
    ENTRIES_OF_POSITION = "entries_of_position";
    ENTRY_OF_POSITION = "entry_of_position";
    ENVIRONMENT_BY_DIGEST = "environment_by_digest";
    EVALUATIONS_OF_NODE = "evaluations_of_node";
    EVALUATION_BY_ID = "evaluation_by_id";
    EVENTS_FROM = "events_from";
    EVIDENCE_OF_KEPT_NODES = "evidence_of_kept_nodes";
    EXECS_OF_ATTEMPT = "execs_of_attempt";
    EXEC_BY_ID = "exec_by_id";
    EXTEND_ROLLOUT = "extend_rollout";
    FAIL_EDGE = "fail_edge";
    FREE_CONSUMPTIONS = "free_consumptions";
    GROUP_BY_ID = "group_by_id";
    GROUP_BY_NAME = "group_by_name";
    GROUP_OF_END = "group_of_end";
    HELD_LEASES = "held_leases";
    HELD_ROLLOUTS = "held_rollouts";
    HOLD_CONSUMPTION = "hold_consumption";
    HOLD_EDGE = "hold_edge";
    IDS_OF_ATTEMPTS = "ids_of_attempts";
    IDS_OF_ENTRIES = "ids_of_entries";
    IDS_OF_EVALUATIONS = "ids_of_evaluations";
    IDS_OF_EXECS = "ids_of_execs";
    IDS_OF_GROUPS = "ids_of_groups";
    IDS_OF_LEASES = "ids_of_leases";
    IDS_OF_NODES = "ids_of_nodes";
    IDS_OF_PROMPTS = "ids_of_prompts";
    IDS_OF_ROLLOUTS = "ids_of_rollouts";
    IDS_OF_ROOTS = "ids_of_roots";
    IDS_OF_RUNS = "ids_of_runs";
    IDS_OF_SEARCHES = "ids_of_searches";
    IDS_OF_SIBLINGS = "ids_of_siblings";
    IDS_OF_TASKS = "ids_of_tasks";
    INSERT_ACTION = "insert_action";
    INSERT_ATTEMPT = "insert_attempt";
    INSERT_BATCH = "insert_batch";
    INSERT_CONSUMER = "insert_consumer";
    INSERT_EDGE = "insert_edge";
    INSERT_ENVIRONMENT = "insert_environment";
    INSERT_EVALUATION = "insert_evaluation";
    INSERT_EVENT = "insert_event";
    INSERT_EXEC = "insert_exec";
    INSERT_GROUP = "insert_group";
    INSERT_GROUP_DELIVERY = "insert_group_delivery";
    INSERT_LEASE = "insert_lease";
    INSERT_MERGE_PARENT = "insert_merge_parent";
    INSERT_NODE = "insert_node";
    INSERT_POLICY = "insert_policy";
    INSERT_POLICY_VERSION = "insert_policy_version";
    INSERT_POSITION = "insert_position";
    INSERT_PROMPT = "insert_prompt";
    INSERT_QUEUE_ENTRY = "insert_queue_entry";
    INSERT_REQUEST = "insert_request";
    INSERT_ROLLOUT = "insert_rollout";
    INSERT_ROOT = "insert_root";
    INSERT_RUN = "insert_run";
    INSERT_SEARCH = "insert_search";
    INSERT_SIBLING = "insert_sibling";
    INSERT_SIBLING_DELIVERY = "insert_sibling_delivery";
    INSERT_STATE = "insert_state";
    INSERT_STEP = "insert_step";
    INSERT_STORE = "insert_store";
    INSERT_TAG = "insert_tag";
    INSERT_TASK = "insert_task";
    INSERT_TRANSPOSITION = "insert_transposition";
    INSERT_TRIAL = "insert_trial";
    KEEP_LATE = "keep_late";
    KEPT_ATTEMPTS_OF_NODE = "kept_attempts_of_node";
    LAPSED_ROLLOUTS = "lapsed_rollouts";
    LAPSED_TRIALS = "lapsed_trials";
    LAST_EVENT = "last_event";
    LAST_POSITION = "last_position";
    LATEST_STEP = "latest_step";
    LEASES_OF_ATTEMPT = "leases_of_attempt";
    LEASES_OF_NODE = "leases_of_node";
    LEASE_BY_ID = "lease_by_id";
    LEASE_ENTRY = "lease_entry";
    LINEAGE_OF_NODE = "lineage_of_node";
    LINE_OF_TASK = "line_of_task";
    LINK_EDGE = "link_edge";
    LIVE_ATTEMPTS = "live_attempts";
    LIVE_COUNT = "live_count";
    LIVE_ENVIRONMENTS = "live_environments";
    LIVE_IN_GROUP = "live_in_group";
    LIVE_ROOTS = "live_roots";
    MERGE_PARENTS = "merge_parents";
    MOVE_CANONICAL = "move_canonical";
    MOVE_CURSOR = "move_cursor";
    MOVE_ROLLOUT = "move_rollout";
    NAMING_ENVIRONMENTS = "naming_environments";
    NEW_ENTRIES = "new_entries";
    NEXT_SIBLINGS = "next_siblings";
    NODES_OF_GROUP = "nodes_of_group";
    NODES_OF_ROLLOUTS = "nodes_of_rollouts";
    NODES_OF_ROOT = "nodes_of_root";
    NODE_BY_ID = "node_by_id";
    NODE_OF_TAG = "node_of_tag";
    OFFER = "offer";
    OPEN_ATTEMPT_OF_DRAFT = "open_attempt_of_draft";
    OPEN_ATTEMPT_OF_NODE = "open_attempt_of_node";
    OPEN_CONSUMPTION = "open_consumption";
    OPEN_PROMPT = "open_prompt";
    OPEN_PROMPT_ROW = "open_prompt_row";
    OPEN_SIBLINGS = "open_siblings";
    OPEN_SIBLINGS_OF_RUN = "open_siblings_of_run";
    ORDER_OF_POSITION = "order_of_position";
    PINS_OF_ROOT = "pins_of_root";
    POLICY_OF_GROUP = "policy_of_group";
    POLICY_VERSION = "policy_version";
    POLICY_VERSIONS_OF_RUN = "policy_versions_of_run";
    POSITIONS_FROM = "positions_from";
    POSITION_AT_PLACE = "position_at_place";
    POSITION_BY_NUMBER = "position_by_number";
    POSITION_OF_NODE = "position_of_node";
    POSITION_WITH_KEY = "position_with_key";
    PROMPTS_FROM = "prompts_from";
    PROMPT_BY_ID = "prompt_by_id";
    PROMPT_BY_NUMBER = "prompt_by_number";
    PRUNE_EDGE = "prune_edge";
    PRUNE_NODE = "prune_node";
    PRUNE_POSITION = "prune_position";
    QUEUE = "queue";
    QUEUED_ATTEMPTS = "queued_attempts";
    QUEUED_IDS = "queued_ids";
    QUEUED_IN_GROUP = "queued_in_group";
    QUEUED_OF_GROUP = "queued_of_group";
    QUEUE_BY_GROUP = "queue_by_group";
    QUEUE_ENTRIES_OF_GROUP = "queue_entries_of_group";
    QUEUE_ENTRIES_OF_TASK = "queue_entries_of_task";
    QUEUE_ENTRIES_WAITING = "queue_entries_waiting";
    QUEUE_ENTRY_BY_ID = "queue_entry_by_id";
    QUEUE_ENTRY_NEEDING_NODE = "queue_entry_needing_node";
    QUEUE_ENTRY_WAITING_OF_TASK = "queue_entry_waiting_of_task";
    RAISE_POSITION = "raise_position";
    RECOUNT_RUN = "recount_run";
    REFILL_PROMPT = "refill_prompt";
    REOPEN_PROMPT = "reopen_prompt";
    REQUEST_BY_KEY = "request_by_key";
    REWARDS_OF_PROMPT = "rewards_of_prompt";
    ROLLOUTS_FROM = "rollouts_from";
    ROLLOUTS_NEEDING_NODE = "rollouts_needing_node";
    ROLLOUT_BY_ID = "rollout_by_id";
    ROLLOUT_OF_EVALUATION = "rollout_of_evaluation";
    ROOT_KNOWN = "root_known";
    RUNNING_EXECS = "running_execs";
    RUNS_NEEDING_NODE = "runs_needing_node";
    RUNS_OF_GROUP = "runs_of_group";
    RUN_BY_ID = "run_by_id";
    RUN_BY_NUMBER = "run_by_number";
    RUN_SIBLING = "run_sibling";
    SEARCHES_NEEDING_NODE = "searches_needing_node";
    SEARCHES_OF_GROUP = "searches_of_group";
    SEARCH_BY_ID = "search_by_id";
    SEARCH_BY_NUMBER = "search_by_number";
    SEQUENCE_OF_SIBLING = "sequence_of_sibling";
    SET_CONSUMPTION = "set_consumption";
    SET_SEARCH_ROOT = "set_search_root";
    SIBLINGS_OF_PROMPT = "siblings_of_prompt";
    SIBLING_BY_ID = "sibling_by_id";
    SPANS_OF_PROMPT = "spans_of_prompt";
    STATE_KNOWN = "state_known";
    STATS_OF_EDGES = "stats_of_edges";
    STATS_OF_POSITION = "stats_of_position";
    STEPS_FROM = "steps_from";
    STEP_CONSUMER = "step_consumer";
    STORE_ID = "store_id";
    TAGS_OF_NODE = "tags_of_node";
    TASKS_INTEGRATED_AS = "tasks_integrated_as";
    TASKS_OF_GROUP = "tasks_of_group";
    TASK_BY_ID = "task_by_id";
    TASK_BY_NAME = "task_by_name";
    TRAINED_AFTER = "trained_after";
    TRIALS_OF_SIBLING = "trials_of_sibling";
    TRIAL_BY_NUMBER = "trial_by_number";
    TRIAL_OF_SIBLING = "trial_of_sibling";
    UPDATE_ATTEMPT = "update_attempt";
    UPDATE_EDGE_CHILD = "update_edge_child";
    UPDATE_EXEC = "update_exec";
    UPDATE_LEASE = "update_lease";
    UPDATE_NODE = "update_node";
    UPDATE_POSITION = "update_position";
    UPDATE_POSITION_STATS = "update_position_stats";
    UPDATE_RUN = "update_run";
    UPDATE_SEARCH = "update_search";
    UPDATE_TASK = "update_task";
    USED_ENTRIES = "used_entries";
    USER_OF_ENTRY = "user_of_entry";
    VISIT_EDGE = "visit_edge";
    VOID_ROLLOUT = "void_rollout";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    fn placeholders(sql: &str) -> Vec<usize> {
        sql.split('$')
            .skip(1)
            .map(|rest| {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().expect("a number follows `$`")
            })
            .collect()
    }

    #[test]
    fn every_statement_suits_the_schema_and_both_databases() {
        let db = rusqlite::Connection::open_in_memory().expect("memory");
        crate::schema::migrate(&db).expect("schema");
        for (name, sql) in ALL {
            db.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut highest = 0;
            for number in placeholders(sql) {
                assert!(number <= highest + 1, "{name}: ${number} before ${}", highest + 1);
                highest = highest.max(number);
            }
            for word in ["?", "INSERT OR", "REPLACE", "rowid", "ifnull", "IFNULL", "`", "\""] {
                assert!(!sql.contains(word), "{name} has {word:?}, which PostgreSQL does not speak");
            }
        }
    }
}
