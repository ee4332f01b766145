/* The descriptor's name, on a function. */
int gradcomp_compressor_v1(void);
__attribute__((visibility("default"))) int gradcomp_compressor_v1(void)
{
	return 1;
}
