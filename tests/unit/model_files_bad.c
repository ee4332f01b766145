/* Model and plan files: what is wrong is refused with file and line. */
#include "tests/support/refused_file.h"

static const char model_text[] = "[model]\n"
				 "name = tiny\n"
				 "batch = 32\n"
				 "io = 1e-3\n"
				 "copy = 1e-4\n"
				 "update = 2e-4\n"
				 "tensors = 3\n"
				 "[tensors]\n"
				 "0 = conv1.weight 64x3x7x7 forward 1.2e-3 backward 2.4e-3\n"
				 "1 = scale scalar forward 0 backward 0\n"
				 "2 = none 0x5 forward 0 backward 1e-9\n"
				 "[layers]\n"
				 "0 = first tensors 0-1 output 100 kept 1 2 reduces 0\n"
				 "1 = second tensors 2-2 output 100 kept 1 2 reduces 4\n";

static void model_bad(void)
{
	static const bad list[] = {
		{"name = tiny\n", "", "there is no 'name' in section [model]"},
		{"batch = 32", "batch = -1", "batch is '-1'"},
		{"batch = 32", "batch = 99999999999999999999", "batch is '99999999999999999999'"},
		{"io = 1e-3", "io = -1e-3", ":4: io is '-1e-3'; it must be seconds, 0 to 3600"},
		{"io = 1e-3", "io = nan", "io is 'nan'"},
		{"io = 1e-3", "io = 1e9", "io is '1e9'"},
		{"io = 1e-3", "io = 3600", "a step of model 'tiny' takes 3600"},
		{"io = 1e-3", "speed = 1", "unknown key 'speed' in section [model]"},
		{"tensors = 3", "tensors = 4", "there are 3 tensors, but [model] says 4: is the file whole?"},
		{"1 = scale", "2 = scale", ":10: tensor 2 comes where 1 would be right"},
		{"1 = scale", "0 = scale", "tensor 0 was given already, or comes too late; the next is 1"},
		{"1 = scale", "-1 = scale", "'-1' is no number of a tensor"},
		{"1 = scale", "x = scale", "'x' is no number of a tensor"},
		{"1 = scale", "99999999999 = scale", "is no number of a tensor"},
		{"scale scalar", "scale", "is no tensor; write NAME DIMxDIM forward SECONDS backward SECONDS"},
		{"64x3x7x7", "64x-3x7x7", "'64x-3x7x7' is no shape"},
		{"64x3x7x7", "64xx7", "is no shape"},
		{"64x3x7x7", "64x", "is no shape"},
		{"64x3x7x7", "x64", "is no shape"},
		{"64x3x7x7", "1x1x1x1x1x1x1x1x1", "at most 8 dimensions"},
		{"64x3x7x7", "16777216x16777217", "has more than 2^48 parameters"},
		{"64x3x7x7", "9223372036854775807x9223372036854775807", "has more than 2^48 parameters"},
		{"64x3x7x7", "0x9223372036854775807", "has more than 2^48 parameters"},
		{"64x3x7x7", "99999999999999999999", "is no shape"},
		{"forward 1.2e-3", "forward -1", ":9: forward is '-1'"},
		{"forward 1.2e-3", "forward nan", "forward is 'nan'"},
		{"forward 1.2e-3", "forwards 1.2e-3", "is no tensor"},
		{"backward 2.4e-3", "backward 3601", "backward is '3601'"},
		{"backward 2.4e-3", "backward 2.4e-3 1", "is no tensor"},
		{"backward 2.4e-3", "backward 3599.999", "a step of model 'tiny' takes"},
		{"64x3x7x7 forward 1.2e-3 backward 2.4e-3\n1 = scale scalar", "0 forward 1 backward 1\n1 = scale 0",
	         "model 'tiny' has no parameters"},
		{"tensors 2-2", "tensors 1-2", "it must begin with 2"},
		{"tensors 2-2", "tensors 2-3", "the last tensor is 2"},
		{"1 = second tensors 2-2 output 100 kept 1 2 reduces 4\n", "", "tensors 2-2 are in none"},
		{"output 100", "output -1", "output is '-1'"},
		{"[layers]", "[layer]", "unknown section [layer]"},
		{"", "\x01", "there is a control character (0x01)"},
	};
	const char *names[] = {"[tensors]\n", "[model]\nname = x\n", ""};
	all_refused(MODEL, "model", model_text, list, sizeof list / sizeof list[0]);
	for (size_t i = 0; i < 3; i++) {
		put(names[i], strlen(names[i]));
		is_int(read_it(MODEL), GRADCOMP_ERR_INVALID, "model: %s", i == 2 ? "empty" : "nothing in it");
	}
	/* Cut anywhere, it is not taken for less than it was; but for what comes behind the tensors. */
	int taken = 0;
	for (size_t n = 0; n < strlen(model_text); n++) {
		put(model_text, n);
		taken += !read_it(MODEL) && n < (size_t)(strstr(model_text, "2 = none") - model_text);
	}
	is_int(taken, 0, "model: cut short");
}

static const char plan_text[] = "[plan]\n"
				"model = tiny\n"
				"hash = 0123456789abcdef\n"
				"tensors = 14\n"
				"parameters = 1000\n"
				"compressor = none\n"
				"collective = ring:chunk=0\n"
				"lag = 0\n"
				"predicted = 0.25\n"
				"[buckets]\n"
				"0 = 0-11 place 1\n"
				"1 = 12-13 place 0\n";

static void plan_bad(void)
{
	static const bad list[] = {
		{"hash = 0123456789abcdef\n", "", "there is no 'hash'"},
		{"0123456789abcdef", "0123456789abcde", "it must be 16 hexadecimal digits"},
		{"0123456789abcdef", "0123456789abcdeg", "it must be 16 hexadecimal digits"},
		{"lag = 0", "lag = 2", "lag is '2'; it must be a whole number, 0 to 1"},
		{"predicted = 0.25", "predicted = -1", "predicted is '-1'"},
		{"tensors = 14", "tensors = 15", "the last bucket ends before tensor 14, but there are 15"},
		{"tensors = 14", "tensors = 13", "bucket 1 ends before tensor 14"},
		{"tensors = 14", "tensors = 1", "a plan of 2 buckets for 1 tensors"},
		{"1 = 12-13", "2 = 12-13", "bucket 2 comes where 1 would be right"},
		{"1 = 12-13", "1 = 11-13", ":12: bucket 1 has tensors '11-13'; it must be 12-LAST"},
		{"1 = 12-13", "1 = 13-13", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12-11", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12--1", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12-99999999999", "it must be 12-LAST"},
		{"place 0", "place 1", "buckets 0 and 1 both have position 1"},
		{"place 0", "place 2", "bucket 1 has position 2 of 2: must be 0..1"},
		{"place 0", "place -1", "is no bucket; write FIRST-LAST place PLACE"},
		{"place 0", "place", "is no bucket"},
		{"[buckets]\n0 = 0-11 place 1\n1 = 12-13 place 0\n", "", "a plan of 0 buckets"},
		{"1 = 12-13 place 0\n", "", "the last bucket ends before tensor 12, but there are 14"},
		{"[buckets]", "[bucket]", "unknown section [bucket]; there are [plan], [buckets]"},
		{"model = tiny", "model = tiny\nmodel = tiny", "model was given in line 2 already"},
	};
	all_refused(PLAN, "plan", plan_text, list, sizeof list / sizeof list[0]);
}

int main(void)
{
	refused_file_make();
	model_bad();
	plan_bad();
	return done_testing();
}
