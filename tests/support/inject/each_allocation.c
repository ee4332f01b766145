#include "tests/support/inject/each_allocation.h"

#include "tests/support/dir_entries.h"
#include "tests/support/inject/inject.h"
#include "tests/support/tap.h"

#include <stdlib.h>

enum { SHOWN = 10 };

void each_allocation_fails(const each_allocation *of)
{
	int bad = 0, failed = 0;
	unsigned long n = 1;
	for (;; n++) {
		gradcomp_error err = {.text = ""};
		const char *wrong = NULL;
		gradcomp_status st;
		inject_counts seen;
		char fault[40];
		int fds;

		if (of->prepare)
			of->prepare();
		fds = entries("/proc/self/fd");
		snprintf(fault, sizeof fault, "alloc=%lu", n);
		if (inject_set(fault))
			abort();
		inject_on();
		st = of->call(&err);
		inject_off();
		seen = inject_seen();
		if (st && (st != err.status || !*err.text))
			wrong = "it fails without words";
		else if (seen.live || entries("/proc/self/fd") != fds)
			wrong = "something is kept";
		else if (of->wrong)
			wrong = of->wrong(st);
		if (wrong && bad++ < SHOWN)
			printf("# allocation %lu: status %d, '%s', %lu kept: %s\n", n, st, err.text, seen.live, wrong);
		failed += st != 0;
		if (!seen.faults)
			break;
	}
	tap_tried(n - 1, "injected faults");
	ok(!bad && failed > of->least, "%s: of %lu allocations %d are needed, none is lost", of->what, n - 1, failed);
}
