/* Nodes whose shared copies are not the same: a user cannot mend one, and has his own where it differs. As root,
 * in processes that become a user. */
#include <grp.h>

#include "tests/support/stage_group_fixture.h"

#define USER 61234

static void stage_shared(const char *cache)
{
	gradcomp_stage_options o = {.struct_size = sizeof o,
	                            .source = group_options.source,
	                            .flags = GRADCOMP_STAGE_SHARED,
	                            .cache_dir = cache};
	got = (gradcomp_stage_result){.struct_size = sizeof got};
	is_int(gradcomp_stage(&o, &got, &why), 0, "root stages for all on a node");
	like(got.path, "/shared/", "there");
}

/* Says what a step of the user's gets: a letter a node, 's' the shared copy, 'o' his own, '!' nothing; upper case
 * where it has the contents of node 0's. */
static void step_of_user(char nodes[3])
{
	int ends[2];
	must(pipe(ends), "pipe");
	pid_t pid = fork();
	must(pid, "fork");
	if (pid == 0) {
		char here[200] = "";
		if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER) || !group_stage(2))
			_exit(1);
		for (int r = 0; r < 2; r++) {
			nodes[r] = group_out[r].status ? '!' : strstr(group_out[r].result.path, "/shared/") ? 's' : 'o';
			got = group_out[r].result;
			if (r == 0)
				snprintf(here, sizeof here, "%s", copied("a"));
			if (nodes[r] == '!')
				printf("# node %d: %s\n", r, group_out[r].error.text);
			else if (*here && !strcmp(copied("a"), here))
				nodes[r] -= 'a' - 'A';
		}
		fflush(stdout);
		_exit(write(ends[1], nodes, 2) != 2);
	}
	close(ends[1]);
	nodes[0] = nodes[1] = '?';
	must(read(ends[0], nodes, 2) < 0 ? -1 : 0, "read");
	close(ends[0]);
	must(waitpid(pid, NULL, 0) < 0 ? -1 : 0, "waitpid");
}

int main(void)
{
	static char source[160], caches[2][160], text[400];
	char nodes[3] = "";
	if (geteuid() != 0) {
		skip("needs root", "the shared area");
		return done_testing();
	}
	bench_begin();
	must(chmod(bench_dir, 0755), "chmod");
	group_clear();
	snprintf(source, sizeof source, "%s/src", bench_dir);
	group_options.source = source;
	snprintf(text, sizeof text, "[stage]\nshared = %s\nshared_user = root\n", source);
	put("conf", text);
	for (int k = 0; k < 2; k++) {
		snprintf(caches[k], sizeof caches[k], "%s/cache%d", bench_dir, k);
		must(chmod(caches[k], 01777), caches[k]);
	}
	put("src/a", "one\n");
	stage_shared(caches[0]);
	step_of_user(nodes);
	is_str(nodes, "SO", "where one node has none, a user has his own");
	must(system("rm -r cache1/61234") ? -1 : 0, "rm");
	stage_shared(caches[1]);
	step_of_user(nodes);
	is_str(nodes, "SS", "where both have one, none");
	must(system("rm -r cache1/shared && touch -r src/a stamp && echo two >src/a && touch -r stamp src/a") ? -1 : 0,
	     "change");
	stage_shared(caches[1]);
	step_of_user(nodes);
	is_str(nodes, "SO", "where they differ, his own on one, as the other");
	step_of_user(nodes);
	is_str(nodes, "SO", "again");
	return done_testing();
}
