/* A rank of 128 processes is killed while all are in all-reduces: every other one names it, within a second.
 * Argument: as many ranks. bench/scaling --kill measures the same. */
#include "tests/support/killed_rank.h"

#include "tests/support/pace.h"
#include "tests/support/tap.h"
#include "tests/support/thread_ranks.h"

enum { RANKS = 128 };
static const double LIMIT = 1; /* seconds */

int main(int argc, char **argv)
{
	int ranks = argc > 1 ? atoi(argv[1]) : RANKS;
	/* Only the control tree can tell in time: no limit of another kind ends an all-reduce. */
	const char *settings[] = {plugin_path_setting(), "transport.timeout=120", "transport.wait_timeout=200",
	                          "gradcomp.log=error",  "transport.allow=tcp",   NULL};
	killed_rank k;
	if (kill_a_rank(ranks, settings, &k)) {
		ok(0, "%d processes are started", ranks);
		return done_testing();
	}
	printf("# half of them know after %.3f s, the last after %.3f s\n", k.half, k.last);
	is_int(k.others, ranks - 1, "%d ranks are left", ranks - 1);
	is_int(k.named, ranks - 1, "each names the one that was killed");
	ok(in_time(k.last, LIMIT), "within a second");
	return done_testing();
}
