/* Every operator of the CUDA table against the portable table of the host: to the bit
 * where it is REPLICATED, else to the stated bound. */
#include "tests/cuda/device_arrays.h"

#include "tests/cuda/compare_chunks.h"
#include "tests/cuda/compare_codes.h"
#include "tests/cuda/compare_elements.h"
#include "tests/cuda/compare_launches.h"
#include "tests/cuda/compare_low_rank.h"
#include "tests/cuda/compare_selection.h"
#include "tests/cuda/compare_tensors.h"
#include "tests/cuda/compare_traffic.h"

static void test_launches_counted(void)
{
	if (device_can_fail)
		test_launches();
}

static const struct {
	const char *name;
	void (*run)(void);
} groups[] = {{"elements", test_elements},
              {"selection", test_selection},
              {"low_rank", test_low_rank},
              {"codes", test_codes},
              {"tensors", test_tensors},
              {"damage", test_damage},
              {"launches", test_launches_counted},
              {"chunks", test_chunks},
              {"traffic", test_traffic}};

/* The groups that are named, or all but those with a '-' before the name. */
int main(int argc, char **argv)
{
	const char *why = "";
	gpu = device_table(&why);
	cpu = operators_cpu_variant("portable");
	if (!gpu) {
		printf("1..0 # SKIP %s\n", why);
		return 77;
	}
	test_seed();
	is_int(gpu->device, GRADCOMP_CUDA, "the table is the device's");
	is_int(gpu->struct_size, sizeof *gpu, "and whole");
	for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
		int named = argc < 2 || *argv[1] == '-';
		for (int i = 1; i < argc; i++)
			if (!strcmp(argv[i] + (*argv[i] == '-'), groups[g].name))
				named = *argv[i] != '-';
		if (named)
			groups[g].run();
	}
	return done_testing();
}
