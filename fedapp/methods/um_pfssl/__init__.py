from fedapp.methods.um_pfssl.method import UmPfssl

METHOD = UmPfssl
