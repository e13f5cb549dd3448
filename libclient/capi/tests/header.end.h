
/* Passes the size of the struct, so that options which this header has and an older one lacks are set, too. */
#define fdbroker_options_init(options) fdbroker_options_init_sized((options), sizeof(fdbroker_options_t))

#ifdef __cplusplus
}
#endif

#endif /* FDBROKER_H */
