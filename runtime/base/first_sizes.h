/* How long public structures were when they came out: what is at least there of one that another release made.
 * These never change; tests/contract/layouts.t finds them again in tests/golden/include. */
#ifndef BASE_FIRST_SIZES_H
#define BASE_FIRST_SIZES_H

#define FIRST_SIZE(structure) FIRST_SIZE_##structure

enum {
	/* abi.h */
	FIRST_SIZE_gradcomp_host = 64,
	/* operators.h */
	FIRST_SIZE_gradcomp_quantiser = 56,
	FIRST_SIZE_gradcomp_levels = 1040,
	FIRST_SIZE_gradcomp_coding = 24,
	FIRST_SIZE_gradcomp_code_layout = 72,
	FIRST_SIZE_gradcomp_operators = 656, /* since ABI 3 */
	/* compressor.h */
	FIRST_SIZE_gradcomp_layout = 48,
	FIRST_SIZE_gradcomp_bucket = 32,
	FIRST_SIZE_gradcomp_plan = 400,
	FIRST_SIZE_gradcomp_work = 104,
	FIRST_SIZE_gradcomp_cost = 32,
	FIRST_SIZE_gradcomp_measured = 80,
	FIRST_SIZE_gradcomp_compressor_v1 = 280,
	/* collective.h */
	FIRST_SIZE_gradcomp_links = 88,
	FIRST_SIZE_gradcomp_codec = 48,
	FIRST_SIZE_gradcomp_merger = 24,
	FIRST_SIZE_gradcomp_exchange = 64,
	FIRST_SIZE_gradcomp_shard = 32,
	FIRST_SIZE_gradcomp_call_load = 104,
	FIRST_SIZE_gradcomp_collective_v1 = 272,
	/* coder.h */
	FIRST_SIZE_gradcomp_coder_options = 72,
	FIRST_SIZE_gradcomp_coder_stats = 80,
	/* dataset.h */
	FIRST_SIZE_gradcomp_value_buffer = 24,
	FIRST_SIZE_gradcomp_dataset_options = 72,
	FIRST_SIZE_gradcomp_value_view = 40,
	FIRST_SIZE_gradcomp_dataset_stats = 96,
	/* gradcomp.h */
	FIRST_SIZE_gradcomp_store = 40,
	FIRST_SIZE_gradcomp_job_options = 24,
	FIRST_SIZE_gradcomp_survivors = 48,
	FIRST_SIZE_gradcomp_memory_options = 16,
	FIRST_SIZE_gradcomp_call = 136,
	FIRST_SIZE_gradcomp_policy_call = 32,
	FIRST_SIZE_gradcomp_policy_entry = 48,
	FIRST_SIZE_gradcomp_reducer_options = 120,
	FIRST_SIZE_gradcomp_reducer_stats = 96,
	/* samples.h */
	FIRST_SIZE_gradcomp_samples_options = 24,
	FIRST_SIZE_gradcomp_sample_info = 32,
	/* stage.h */
	FIRST_SIZE_gradcomp_stage_progress = 64,
	FIRST_SIZE_gradcomp_stage_options = 88,
	FIRST_SIZE_gradcomp_stage_result = 8328,
};

#endif
