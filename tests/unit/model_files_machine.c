/* Machine files: what is wrong is refused with file and line; noise, too. */
#include "tests/support/test_random.h"
#include "tests/support/refused_file.h"

static const char machine_text[] = "\xef\xbb\xbf; a comment\n"
				   "[machine]\n"
				   "name = four nodes\n"
				   "nodes = 4\n"
				   "ranks_per_node = 2 ; two\n"
				   "memory = 1e-10\n"
				   "reduce = 2e-10\n"
				   "[node]\n"
				   "message = 2e-6\n"
				   "byte = 1e-10\n"
				   "[network]\n"
				   "message = 3e-5\n"
				   "byte = 8.5e-9\n"
				   "[compressor 1]\n"
				   "spec = powersgd:rank=4,\n"
				   "more = min_ratio=2\n"
				   "encode = 1e-5 2e-10\n"
				   "decode = 1e-5 1e-10\n"
				   "[compressor 2]\n"
				   "spec = topk\n"
				   "encode = 0 2e-9\n"
				   "decode = 0 0\n"
				   "gathered = 1e-10\n"
				   "code = 1e-6 1e-10\n"
				   "[collective 1]\n"
				   "allreduce = 1e-4 2e-9\n"
				   "spec = ring:chunk=0\n"
				   "allgather = 2e-4 3e-9\n";

static void machine_bad(void)
{
	static const bad list[] = {
		{"nodes = 4", "nodes = 0", "must be a whole number, 1 to 1000000"},
		{"nodes = 4", "nodes = -4", "must be a whole number"},
		{"nodes = 4", "nodes = 4.5", "must be a whole number"},
		{"nodes = 4", "nodes = 4000000000", "must be a whole number"},
		{"nodes = 4\n", "", "there is no 'nodes' in section [machine]"},
		{"nodes = 4", "nodes = 4\nnodes = 5", ":5: nodes was given in line 4 already"},
		{"nodes = 4", "node = 4", "unknown key 'node' in section [machine] (did you mean 'nodes'?)"},
		{"nodes = 4", "nodes", "no comment, no [section] and no key = value"},
		{"nodes = 4", "nodes = four", "is 'four'"},
		{"name = four nodes", "name =", "1 to 63 printable characters"},
		{"name = four nodes", "name = a#b", "without ';' and '#'"},
		{"memory = 1e-10", "memory = -1e-10", ":6: memory is '-1e-10'"},
		{"memory = 1e-10", "memory = nan", "memory is 'nan'"},
		{"memory = 1e-10", "memory = inf", "memory is 'inf'"},
		{"memory = 1e-10", "memory = 1e-400", "memory is '1e-400'"},
		{"memory = 1e-10", "memory = 0", "seconds for a byte, 1e-14 to 0.01"},
		{"message = 2e-6", "message = 3600", ":9: message is '3600'; it must be seconds, 0 to 60"},
		{"byte = 8.5e-9", "byte = 1e-15", "byte is '1e-15'; it must be seconds for a byte, 1e-14"},
		{"byte = 8.5e-9", "byte = 3", "it must be seconds for a byte"},
		{"byte = 8.5e-9\n", "", ":11: this section [network] has no 'byte'"},
		{"[network]\nmessage = 3e-5\nbyte = 8.5e-9\n", "", "there is no 'message' in section [network]"},
		{"[network]", "[web]", "unknown section [web]; there are [machine], [node], [network], [compressor N]"},
		{"[network]", "[network", "is not a section; write [NAME]"},
		{"[compressor 2]", "[compressor 1]", "compressor 1 was given already"},
		{"[compressor 2]", "[compressor 3]", "compressor 3 comes where 2 would be right"},
		{"[compressor 2]", "[compressor]", "unknown section [compressor]"},
		{"[compressor 2]", "[compressor two]", "'two' is no number of a compressor"},
		{"[compressor 2]", "[compressor 2 3]", "unknown section [compressor 2 3]"},
		{"spec = topk", "spec = powersgd:rank=4,min_ratio=2",
	         ":19: compressor 'powersgd:rank=4,min_ratio=2' has a section already"},
		{"spec = topk\n", "", ":19: this section [compressor] has no 'spec'"},
		{"spec = topk", "spec = ../topk", "spec: "},
		{"encode = 0 2e-9", "encode = 0", "write two numbers A B"},
		{"encode = 0 2e-9", "encode = 0 0 0", "write two numbers A B"},
		{"encode = 0 2e-9", "encode = -1 0", "the first number of encode is '-1'"},
		{"encode = 0 2e-9", "encode = 0 1", "the second number of encode is '1'"},
		{"encode = 0 2e-9", "encode = 0 nan", "the second number of encode is 'nan'"},
		{"encode = 0 2e-9\n", "", "this section [compressor] has no 'encode'"},
		{"encode = 0 2e-9", "encode = 0 2e-9\nmore = x", "'more' stands behind no SPEC"},
		{"gathered = 1e-10", "gathered = -1", "gathered is '-1'"},
		{"allreduce = 1e-4 2e-9", "allreduce = 1e-4 2e-9\nallreduce = 1 1", "allreduce was given already"},
		{"allreduce = 1e-4 2e-9", "allreduce = 1e-4", "write two numbers"},
		{"allreduce = 1e-4 2e-9", "reduce = 1e-4 2e-9", "unknown key 'reduce' in section [collective]"},
		{"spec = ring:chunk=0\n", "", ":25: this section [collective] has no 'spec'"},
		{"", "[collective 2]\nspec = ring:chunk=0\nallreduce = 1 1e-9\n", "has a section already"},
		{"", "  nodes = 5\n", "the line is indented"},
		{"", "[machine]\nnodes = 5\n", "was given in line 4 already"},
		{"; a comment", "nodes = 4", "stands before the first [section]"},
	};
	static char text[70000];
	all_refused(MACHINE, "machine", machine_text, list, sizeof list / sizeof list[0]);
	snprintf(text, sizeof text, "%.*snodes = %065600d\n", 30, machine_text, 4);
	put(text, strlen(text));
	is_int(read_it(MACHINE), GRADCOMP_ERR_INVALID, "an overlong line");
	like(e.text, "the line is too long", "and why");
	snprintf(text, sizeof text, "%s[collective 2]\nspec = a:b=c\n", machine_text);
	for (int i = 0; i < 30; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "more = %0150d\n", 0);
	put(text, strlen(text));
	is_int(read_it(MACHINE), GRADCOMP_ERR_INVALID, "a SPEC without end");
	like(e.text, "the SPEC is longer than 4000 characters", "and why");
}

static void binary(void)
{
	char text[sizeof machine_text];
	int taken = 0;
	for (int i = 0; i < 200; i++) {
		for (size_t k = 0; k < sizeof text; k++)
			text[k] = (char)(int)(draw() * 256);
		put(text, sizeof text);
		taken += !read_it((kind)(i % 3));
	}
	is_int(taken, 0, "noise is refused");
}

int main(void)
{
	refused_file_make();
	draw_state = 7;
	machine_bad();
	binary();
	return done_testing();
}
