/* A job takes the best of the networks that its machines have; more layouts are in tests/long/networks.c. */
#define _GNU_SOURCE
#include "tests/support/network_layouts.h"

int main(void)
{
	return layouts_try(0, LAYOUTS_SHORT, false);
}
