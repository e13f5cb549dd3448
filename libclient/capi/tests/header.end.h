
#ifdef __cplusplus
}
#endif

#endif /* FDBROKER_H */
