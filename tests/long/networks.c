/* A job takes the best of the networks that its machines have, and is as fast as when it is told which: twenty
 * layouts. */
#define _GNU_SOURCE
#include "tests/support/network_layouts.h"

int main(int argc, char **argv)
{
	/* One alone, for who looks for a fault. */
	int only = argc > 1 ? atoi(argv[1]) : -1;
	return layouts_try(only >= 0 ? only : 0, only >= 0 && only < LAYOUTS ? only + 1 : LAYOUTS, true);
}
