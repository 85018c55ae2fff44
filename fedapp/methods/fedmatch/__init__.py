from fedapp.methods.fedmatch.method import FedMatch

METHOD = FedMatch
